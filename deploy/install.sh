#!/usr/bin/env bash
# Installs Trimtab into an environment of its own, with its systemd units. May be run again: settings stay as they are.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/layout.sh"

usage() {
    cat << END
usage: install.sh [--role agent|collect|both|learn] [--source CHECKOUT|WHEEL] [--extras NAME]
                  [--prefix $PREFIX] [--config $CONFIG] [--units $UNITS] [--state $STATE]

  --role     agent: the daemon, once per site (the default). collect: on each VM of a fleet. learn: the agent, and a
             timer that learns from its ledger each night, and one that watches what it promoted each hour; brings torch and numba, of fixed versions without hashes
  --source   what to install; else the checkout that this script is in
  --extras   postgres: for a ledger on PostgreSQL; it is installed in any case
PYTHON=python3.12 install.sh uses another Python than python3. Only pip uses the network, for files with hashes in requirements.txt only.
END
}

read_options "$@"
[ ${#REST[@]} -eq 0 ] || fail "${REST[0]}: no such option; see --help"

if [ -e "$PREFIX/venv" ]; then
    say "$PREFIX/venv exists and is kept: upgrade.sh installs another version"
else
    make_environment
    switch_to "$NEW"
fi

mkdir -p "$CONFIG"
for role in ${ROLES% learn}; do
    if [ -e "$CONFIG/$role.env" ]; then
        say "$CONFIG/$role.env exists and is kept"
    else
        (umask 027 && render "$DEPLOY/$role.env.example" > "$CONFIG/$role.env")
        say "wrote $CONFIG/$role.env"
    fi
done
# The service's user reads the settings itself, so the file is readable for all and holds no secrets.
if [[ $ROLES == *agent* && ! -e $CONFIG/agent.toml ]] && grep -qs "^TRIMTAB_CONFIG=$CONFIG/agent.toml\$" "$CONFIG/agent.env"; then
    install -m 644 "$DEPLOY/agent.toml.example" "$CONFIG/agent.toml"
    say "wrote $CONFIG/agent.toml"
fi
# The agent's unit loads credentials from here; an empty folder means none.
[ -d "$CONFIG/credentials" ] || install -d -m 700 "$CONFIG/credentials"

install_units
reload_systemd
for role in ${ROLES% learn}; do
    settings=$CONFIG/$role.toml
    [ -e "$settings" ] || settings=$CONFIG/$role.env
    say "next: edit $settings, then: systemctl enable --now trimtab-$role"
done
if [[ $ROLES == *learn* ]]; then
    share_state
    "$PREFIX/venv/bin/python" -I -c 'import torch, numba' 2> /dev/null \
        || say "note: $PREFIX/venv was made without what learning needs: run upgrade.sh --role learn"
    say "to learn each night: systemctl enable --now trimtab-learn.timer trimtab-watch.timer"
fi
[[ $ROLES != *agent* ]] || say "before that, check the account: sudo $PREFIX/bin/trimtab preflight"
