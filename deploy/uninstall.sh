#!/usr/bin/env bash
# Removes the program and its units. Settings and the ledger stay, unless --purge is given.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/layout.sh"

usage() {
    cat << END
usage: uninstall.sh [--purge] [--prefix $PREFIX] [--config $CONFIG] [--units $UNITS] [--state $STATE]

  --purge  remove settings, credentials and the ledger too: every decision ever recorded
END
}

read_options "$@"
PURGE=
for option in "${REST[@]}"; do
    [ "$option" = --purge ] || fail "$option: no such option; see --help"
    PURGE=yes
done

for name in trimtab-{learn,watch}.timer trimtab-{learn,watch}.service trimtab-agent.service trimtab-collect.service; do
    unit=$UNITS/$name
    [ -e "$unit" ] || continue
    if has_systemd; then
        systemctl disable --now "$name"
    fi
    rm "$unit"
    say "removed $unit"
done
rm -f "$UNITS/trimtab-agent.service.d/learn.conf"
rmdir "$UNITS/trimtab-agent.service.d" 2> /dev/null || true
reload_systemd
# Only files of the installation: any other file in the folder is kept, and then the folder too.
rm -rf "$PREFIX/environments" "$PREFIX/venv" "$PREFIX/previous" "$PREFIX/bin/trimtab"
rmdir --ignore-fail-on-non-empty "$PREFIX/bin" "$PREFIX" 2> /dev/null || true
say "removed the program from $PREFIX"

if [ -z "$PURGE" ]; then
    say "kept: $CONFIG (settings) and $STATE (the ledger); --purge removes them"
    [ ! -d "$STATE-learn" ] || say "kept: $STATE-learn (reports of rounds of learning)"
else
    rm -rf "$CONFIG" "$STATE" "$STATE-learn"
    # With DynamicUser= the state directory is a link to this one.
    [ "$STATE" != /var/lib/trimtab ] || rm -rf /var/lib/private/trimtab /var/cache/trimtab-learn
    # Persistent=true of the timer: when it elapsed last.
    [ "$UNITS" != /etc/systemd/system ] || rm -f /var/lib/systemd/timers/stamp-trimtab-learn.timer
    say "removed $CONFIG and $STATE"
fi
