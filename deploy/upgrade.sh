#!/usr/bin/env bash
# Brings another version beside the one in use, checks the settings with it, then switches; the old one is kept.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/layout.sh"

usage() {
    cat << END
usage: upgrade.sh [--rollback [--leave-ledger]] [--role agent|collect|both|learn] [--source CHECKOUT|WHEEL] [--extras NAME]
                  [--prefix $PREFIX] [--config $CONFIG] [--units $UNITS] [--state $STATE]

  --rollback      go back to the version before. Where that works with an older schema, the service is stopped and the
                  copy of the ledger that the upgrade made takes the place of the ledger, which is kept beside it
  --leave-ledger  with --rollback: switch the program alone; you see to the ledger yourself
END
}

read_options "$@"
ROLLBACK=
LEAVE=
set -- ${REST[@]+"${REST[@]}"}
while [ $# -gt 0 ]; do
    case $1 in
        --rollback) ROLLBACK=yes ;;
        --leave-ledger) LEAVE=yes ;;
        *) fail "$1: no such option; see --help" ;;
    esac
    shift
done
[ -n "$ROLLBACK" ] || [ -z "$LEAVE" ] || fail "--leave-ledger goes with --rollback; see --help"
[ -L "$PREFIX/venv" ] || fail "nothing is installed in $PREFIX: run install.sh"
OLD=$(readlink "$PREFIX/venv")

COPIES=3
STOPPED=()

# A round of learning that is under way goes on with the version of the next night.
end_round() {
    local name
    if [[ $ROLES != *learn* ]] || ! has_systemd; then return 0; fi
    for name in learn watch; do
        # A version without an hourly watch has no such unit, and systemctl fails for one that is not there.
        if [ -e "$UNITS/trimtab-$name.service" ]; then systemctl stop "trimtab-$name.service"; fi
    done
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
        now.backup(copy)
        # Else a reader would leave a log and its index beside the copy.
        copy.execute("PRAGMA journal_mode=DELETE")' "$STATE/ledger.db" "$copy")
    say "copied the ledger to $copy"
    find "$STATE" -maxdepth 1 -type f -name 'ledger.db.before-*' -printf '%T@ %p\n' | sort -rn | tail -n +$((COPIES + 1)) \
        | cut -d' ' -f2- | while IFS= read -r old; do
            rm -f -- "$old"
            say "removed $old: the newest $COPIES copies are kept"
        done
}

# The file that agent.env names as TRIMTAB_CONFIG.
settings_file() { sed -nE "s/^[[:space:]]*TRIMTAB_CONFIG=[\"']?([^\"']*)[\"']?[[:space:]]*\$/\1/p" "$CONFIG/agent.env" | tail -n 1; }

newest_schema() { "$1/bin/python" -I -c 'from agent.ledger.schema import REVISIONS; print(REVISIONS[-1])'; }

# Whether the version in $1 works with an older schema than the ledger has; the schemas are in KNOWN and CURRENT.
needs_copy() {
    local newest
    KNOWN=$(newest_schema "$1") || fail "$1 does not start: nothing was changed"
    newest=$(newest_schema "$OLD") || fail "$OLD does not start: nothing was changed; --leave-ledger switches all the same"
    [[ $newest > $KNOWN ]] || return 1
    if [ ! -f "$STATE/ledger.db" ] && [ ! -e "$CONFIG/credentials/ledger__url" ] \
        && ! grep -qsiE '^[[:space:]]*(TRIMTAB_LEDGER__URL|(TRIMTAB_)?STATE_DIRECTORY)[[:space:]]*=' \
            "$CONFIG/agent.env" "$(settings_file)"; then
        say "there is no ledger yet"
        return 1
    fi
    CURRENT=$("$PREFIX/bin/trimtab" ledger check --json | "$OLD/bin/python" -I -c 'import json, sys
print(json.load(sys.stdin)["schema"])') \
        || fail "the ledger cannot be read: nothing was changed; --leave-ledger switches the program alone"
    [[ $CURRENT > $KNOWN ]]
}

# Switches to the version in $1 and puts the copy from before the upgrade in the ledger's place. That version does it:
# the one in use would bring the copy to its own schema.
restore_copy() {
    local copy
    copy=$STATE/ledger.db.before-$(basename "$OLD")
    say "the ledger has schema $CURRENT, the version before works with $KNOWN"
    [ -f "$copy" ] || fail "$copy is not there: nothing was switched. Restore the ledger from before the upgrade with the \
tools of its database, then --rollback --leave-ledger switches the program"
    stop
    switch_to "$1"
    "$PREFIX/bin/trimtab" ledger restore "$copy" \
        || { switch_to "$OLD"; fail "the copy could not be restored: the version in use stays"; }
    say "later rows are in the replaced ledger: report deployments that started since the upgrade again"
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
        if needs_copy "$BEFORE"; then restore_copy "$BEFORE"; fi
    fi
    if [ "$(readlink "$PREFIX/venv")" != "$BEFORE" ]; then switch_to "$BEFORE"; fi
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
# What the new version brings in is not known to the one before.
for file in "$CONFIG/agent.env" "$(settings_file)"; do
    [ ! -f "$file" ] || cp -p "$file" "$file.before-upgrade"
done
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
# A host that learned before there was an hourly watch.
if has_systemd && systemctl is-enabled --quiet trimtab-learn.timer; then systemctl enable --now trimtab-watch.timer; fi
say "to go back: upgrade.sh --rollback"
