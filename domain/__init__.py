"""The words and formulas everyone shares: frozen dataclasses, decision rules, clocks, errors. numpy only, no I/O."""
