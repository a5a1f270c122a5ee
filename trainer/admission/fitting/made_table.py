"""Writes a table of virtual machines of deployments that a population made: what the fit is checked on.

Every core is a machine of its own, since cores end one by one in the model.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from domain.errors import BadInput
from domain.rules.admission.population import Population
from trainer.admission.fitting.lives import cores_of, drawn_from, uniforms

WINDOW_H = 720.0
GRID_S = 300


def write_table(
    path: Path,
    population: Population,
    deployments: int,
    *,
    seed: int = 0,
    window_h: float = WINDOW_H,
    grid_s: int = GRID_S,
    id_characters: int = 0,
) -> int:
    """Write a table in the format of `vm_table`, .csv or .csv.gz, and return its rows.

    Deployments come at even chances over the window, and times are on a clock of `grid_s` seconds, as Azure's are on
    one of 300. id_characters: ids are filled up to this length, such as Azure's 64. Raises BadInput.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv

    if deployments < 1:
        raise BadInput("deployments", deployments, "give a whole number from 1")
    if not window_h * 3600.0 > 2.0 * grid_s > 0.0:
        raise BadInput("grid_s", grid_s, "give a step above 0 and far below the window")
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, 2])))
    arrival_h = np.sort(generator.random(deployments)) * window_h
    drawn = drawn_from(population, uniforms(deployments, seed), window_h - arrival_h, seed)
    owner, began, over = cores_of(drawn, population.lifetimes)
    last_mark = int(window_h * 3600.0 / grid_s - 1e-9) * grid_s

    def marked(hours: np.ndarray) -> np.ndarray:
        seconds = np.minimum((arrival_h[owner] + hours) * 3600.0, float(last_mark))
        return np.asarray(np.floor(seconds / grid_s) * grid_s, dtype=np.int64)

    count = len(owner)
    names = pa.array([f"d{i:07d}".ljust(id_characters, "x") for i in range(deployments)])
    users = pa.array([f"u{i // 6:07d}".ljust(id_characters, "x") for i in range(deployments)])
    table = pa.table(
        {
            "vmid": pc.utf8_rpad(pa.array(np.arange(count)).cast(pa.string()), id_characters, "x"),
            "subscriptionid": pa.DictionaryArray.from_arrays(owner.astype(np.int32), users).cast(pa.string()),
            "deploymentid": pa.DictionaryArray.from_arrays(owner.astype(np.int32), names).cast(pa.string()),
            "vmcreated": marked(began),
            "vmdeleted": marked(over),
            "maxcpu": np.full(count, 90.0),
            "avgcpu": np.full(count, 10.0),
            "p95maxcpu": np.full(count, 50.0),
            "vmcategory": pa.repeat("Unknown", count),
            "vmcorecount": np.ones(count, dtype=np.int8),
            "vmmemory": np.full(count, 2, dtype=np.int8),
        }
    )
    with pa.output_stream(str(path), compression="gzip" if path.suffix == ".gz" else None) as out:
        csv.write_csv(table, out, csv.WriteOptions(include_header=False, quoting_style="none"))
    return count
