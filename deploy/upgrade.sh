#!/usr/bin/env bash
# Brings another version beside the one in use, checks the settings with it, then switches; the old one is kept.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/layout.sh"

usage() {
    cat << END
usage: upgrade.sh [--rollback] [--role agent|collect|both] [--source CHECKOUT|WHEEL] [--extras NAME]
                  [--prefix $PREFIX] [--config $CONFIG] [--units $UNITS] [--state $STATE]

  --rollback  go back to the version before; its copy of a SQLite ledger is named, and not put back by itself
END
}

read_options "$@"
ROLLBACK=
for option in "${REST[@]}"; do
    [ "$option" = --rollback ] || fail "$option: no such option; see --help"
    ROLLBACK=yes
done
[ -L "$PREFIX/venv" ] || fail "nothing is installed in $PREFIX: run install.sh"
OLD=$(readlink "$PREFIX/venv")

restart() {
    local role
    for role in $ROLES; do
        if has_systemd && systemctl is-active --quiet "trimtab-$role"; then
            systemctl restart "trimtab-$role"
            say "restarted trimtab-$role"
        fi
    done
}

if [ -n "$ROLLBACK" ]; then
    [ -L "$PREFIX/previous" ] || fail "there is no version to go back to in $PREFIX"
    switch_to "$(readlink "$PREFIX/previous")"
    ln -sfn "$OLD" "$PREFIX/previous"
    if compgen -G "$STATE/ledger.db.before-*" > /dev/null; then
        say "if the ledger is too new for it, stop the agent and run: $OLD/bin/trimtab ledger restore" "$(ls -1t "$STATE"/ledger.db.before-* | head -1)"
    fi
    restart
    exit 0
fi

make_environment
if [[ $ROLES == *agent* && -f $CONFIG/agent.env ]]; then
    say "checking the settings with the new version"
    render "$DEPLOY/trimtab" | sed -e "s|$PREFIX/venv/bin|$NEW/bin|" > "$NEW/check"
    bash "$NEW/check" config check > /dev/null || { rm -rf "$NEW"; fail "the settings do not fit; nothing was changed"; }
    rm "$NEW/check"
fi
if [ -f "$STATE/ledger.db" ]; then
    COPY=$STATE/ledger.db.before-$(basename "$NEW")
    (umask 077 && "$NEW/bin/python" -c 'import sqlite3, sys
with sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True) as now, sqlite3.connect(sys.argv[2]) as copy:
    now.backup(copy)' "$STATE/ledger.db" "$COPY")
    say "copied the ledger to $COPY"
fi
ln -sfn "$OLD" "$PREFIX/previous"
switch_to "$NEW"
for environment in "$PREFIX"/environments/*; do
    if [ "$environment" != "$NEW" ] && [ "$environment" != "$OLD" ]; then
        rm -rf "$environment"
        say "removed $environment, two versions old"
    fi
done
install_units
reload_systemd
restart
say "to go back: upgrade.sh --rollback"
