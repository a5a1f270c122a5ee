#!/usr/bin/env bash
# Brings another version beside the one in use, checks the settings with it, then switches; the old one is kept.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/layout.sh"

usage() {
    cat << END
usage: upgrade.sh [--rollback [--lose STATE | --leave-ledger]] [--role agent|collect|both|learn] [--source CHECKOUT|WHEEL] [--extras NAME]
                  [--prefix $PREFIX] [--config $CONFIG] [--units $UNITS] [--state $STATE]

  --rollback      go back to the version before. Where that works with an older schema, the service is stopped and the
                  ledger is copied and brought to that schema first; history and open intents stay
  --lose STATE    with --rollback: state that the older schema has no place for (admission, oversubscription) is
                  exported and dropped. Without it such a rollback refuses and changes nothing. May be repeated
  --leave-ledger  with --rollback: switch the program alone; you see to the ledger yourself
END
}

read_options "$@"
ROLLBACK=
LEAVE=
LOSE=()
set -- ${REST[@]+"${REST[@]}"}
while [ $# -gt 0 ]; do
    case $1 in
        --rollback) ROLLBACK=yes ;;
        --leave-ledger) LEAVE=yes ;;
        --lose)
            [ $# -ge 2 ] || fail "--lose needs a value; see --help"
            LOSE+=(--lose "$2")
            shift
            ;;
        *) fail "$1: no such option; see --help" ;;
    esac
    shift
done
[ -n "$ROLLBACK" ] || [ -z "$LEAVE${LOSE[*]-}" ] || fail "--lose and --leave-ledger go with --rollback; see --help"
[ -L "$PREFIX/venv" ] || fail "nothing is installed in $PREFIX: run install.sh"
OLD=$(readlink "$PREFIX/venv")

COPIES=3
STOPPED=()

# A round of learning that is under way goes on with the version of the next night.
end_round() {
    if [[ $ROLES == *learn* ]] && has_systemd; then systemctl stop trimtab-learn.service; fi
}

stop() {
    local role
    end_round
    for role in $ROLES; do
        if has_systemd && systemctl is-active --quiet "trimtab-$role"; then
            # Whatever fails from here on, what ran runs again.
            trap start EXIT
            STOPPED+=("$role")
            systemctl stop "trimtab-$role"
            say "stopped trimtab-$role"
        fi
    done
}

start() {
    local role
    for role in ${STOPPED[@]+"${STOPPED[@]}"}; do
        systemctl start "trimtab-$role" && say "started trimtab-$role"
    done
    STOPPED=()
}

# Copies the SQLite ledger beside itself, for its user and root alone, with the Python of $2; the newest copies stay.
copy_ledger() {
    [ -f "$STATE/ledger.db" ] || return 0
    local copy=$STATE/ledger.db.before-$1 old
    (umask 077 && "$2/bin/python" -I -c 'import contextlib, sqlite3, sys
with contextlib.closing(sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True)) as now:
    with contextlib.closing(sqlite3.connect(sys.argv[2])) as copy:
        now.backup(copy)' "$STATE/ledger.db" "$copy")
    say "copied the ledger to $copy"
    find "$STATE" -maxdepth 1 -type f -name 'ledger.db.before-*' -printf '%T@ %p\n' | sort -rn | tail -n +$((COPIES + 1)) \
        | cut -d' ' -f2- | while IFS= read -r old; do
            rm -f -- "$old"
            say "removed $old: the newest $COPIES copies are kept"
        done
}

newest_schema() { "$1/bin/python" -I -c 'from agent.ledger.schema import REVISIONS; print(REVISIONS[-1])'; }

# Brings the ledger to the schema that the version in $1 works with. The version in use does it: it alone knows how.
fit_ledger() {
    local known newest current
    known=$(newest_schema "$1") || fail "$1 does not start: nothing was changed"
    newest=$(newest_schema "$OLD") || fail "$OLD does not start: nothing was changed; --leave-ledger switches all the same"
    [[ $newest > $known ]] || return 0
    if [ ! -f "$STATE/ledger.db" ] && [ ! -e "$CONFIG/credentials/ledger__url" ] \
        && ! grep -qsiE '^[[:space:]]*TRIMTAB_(LEDGER__URL|STATE_DIRECTORY)=' "$CONFIG/agent.env"; then
        say "there is no ledger yet"
        return 0
    fi
    current=$("$PREFIX/bin/trimtab" ledger check --json | "$OLD/bin/python" -I -c 'import json, sys
print(json.load(sys.stdin)["schema"])') \
        || fail "the ledger cannot be read: nothing was changed; --leave-ledger switches the program alone"
    [[ $current > $known ]] || return 0
    stop
    copy_ledger "rollback-$(date -u +%Y%m%dT%H%M%SZ)" "$OLD"
    say "the ledger has schema $current, the version before works with $known"
    "$PREFIX/bin/trimtab" ledger downgrade --to "$known" ${LOSE[@]+"${LOSE[@]}"} \
        || fail "the ledger keeps its schema and nothing was switched: --lose names what may go, see --help"
}

restart() {
    end_round
    start
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
    BEFORE=$(readlink "$PREFIX/previous")
    if [[ $ROLES == *agent* ]] && [ -z "$LEAVE" ]; then
        fit_ledger "$BEFORE"
    fi
    switch_to "$BEFORE"
    ln -sfn "$OLD" "$PREFIX/previous"
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
copy_ledger "$(basename "$NEW")" "$NEW"
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
if [[ $ROLES == *learn* ]]; then share_state; fi
say "to go back: upgrade.sh --rollback"
