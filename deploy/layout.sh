# Paths of an installation, and the steps that install.sh, upgrade.sh and uninstall.sh share. Sourced, not run.

PREFIX=/opt/trimtab
CONFIG=/etc/trimtab
STATE=/var/lib/trimtab
UNITS=/etc/systemd/system
ROLES=agent
EXTRAS=
PYTHON=${PYTHON:-python3}
DEPLOY=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
SOURCE=$(dirname "$DEPLOY")

# Program, units and settings are read by the service's user, whatever the caller's umask; secrets get modes of their own.
umask 022

say() { printf '%s\n' "$*"; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

# Reads the options common to all three; the remaining arguments are in REST.
read_options() {
    REST=()
    while [ $# -gt 0 ]; do
        case $1 in
            --prefix | --config | --state | --units | --role | --source | --extras)
                [ $# -ge 2 ] || fail "$1 needs a value; see --help"
                case $1 in
                    --prefix) PREFIX=$2 ;;
                    --config) CONFIG=$2 ;;
                    --state) STATE=$2 ;;
                    --units) UNITS=$2 ;;
                    --role) ROLES=$2 ;;
                    --source) SOURCE=$2 ;;
                    --extras) EXTRAS=$2 ;;
                esac
                shift 2
                ;;
            -h | --help) usage; exit 0 ;;
            *) REST+=("$1"); shift ;;
        esac
    done
    case $EXTRAS in
        "" | postgres) ;;
        *) fail "--extras $EXTRAS: give postgres" ;;
    esac
    case $ROLES in
        agent | collect) ;;
        both) ROLES="agent collect" ;;
        learn) ROLES="agent learn" ;;
        *) fail "--role $ROLES: give agent, collect, both or learn" ;;
    esac
    # A host that learns goes on doing so whatever role is named.
    if [[ $ROLES != *learn* && $ROLES == *agent* && -e $UNITS/trimtab-learn.timer ]]; then ROLES="$ROLES learn"; fi
    for path in "$PREFIX" "$CONFIG" "$STATE" "$UNITS"; do
        [[ $path =~ ^/[A-Za-z0-9._/@+-]+$ ]] || fail "$path: give an absolute path of letters, digits and ._@+-"
    done
}

# Creates a new environment with Trimtab in it below $PREFIX/environments; its path is in NEW.
make_environment() {
    [ -e "$SOURCE" ] || fail "$SOURCE: no such checkout or wheel"
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
        || fail "$PYTHON is older than Python 3.11: name another one, PYTHON=python3.12 $0"
    mkdir -p "$PREFIX/environments"
    NEW=$(mktemp -d "$PREFIX/environments/$(date -u +%Y%m%dT%H%M%SZ)-XXXX")
    chmod 755 "$NEW"
    say "creating the environment $NEW"
    "$PYTHON" -m venv "$NEW"
    say "installing $SOURCE"
    # Every file is known by its hash, what builds the program too; nothing is fetched beside them.
    local pip=("$NEW/bin/python" -m pip install --quiet --disable-pip-version-check)
    "${pip[@]}" --require-hashes --requirement "$DEPLOY/requirements.txt" && "${pip[@]}" --no-deps --no-build-isolation "$SOURCE" \
        || { rm -rf "$NEW"; fail "pip could not install $SOURCE with the hashes in $DEPLOY/requirements.txt; nothing was changed"; }
    [[ $ROLES == *learn* ]] || return 0
    say "installing what learning needs: torch, numba and others"
    # Versions are fixed, hashes are not: torch has other files for processors alone than for graphics cards.
    "${pip[@]}" --no-build-isolation --constraint "$(dirname "$DEPLOY")/constraints.txt" "${SOURCE}[train]" \
        || { rm -rf "$NEW"; fail "pip could not install ${SOURCE}[train] with constraints.txt; nothing was changed"; }
}

# Points the link $PREFIX/venv at an environment, in one step.
switch_to() {
    ln -sfn "$1" "$PREFIX/.venv-new"
    mv -T "$PREFIX/.venv-new" "$PREFIX/venv"
    say "$PREFIX/venv is now $1"
}

# Writes a unit with the paths of this installation, and the operators' command.
render() {
    sed -e "s|@PREFIX@|$PREFIX|g" -e "s|@CONFIG@|$CONFIG|g" "$1"
}

install_units() {
    mkdir -p "$UNITS" "$PREFIX/bin"
    local role
    for role in $ROLES; do
        render "$DEPLOY/systemd/trimtab-$role.service" > "$UNITS/trimtab-$role.service"
        say "wrote $UNITS/trimtab-$role.service"
    done
    if [[ $ROLES == *learn* ]]; then
        local name
        # systemd does not start a service whose credential has no file.
        for name in ledger__url learned__promotion_key; do
            [ -e "$CONFIG/credentials/$name" ] || sed -i "/^LoadCredential=trimtab_$name:/d" "$UNITS/trimtab-learn.service"
        done
        # The same service, which begins no round.
        sed -e 's|^Description=.*|Description=Trimtab: look after promoted models|' \
            -e '/^ExecStart=/s|learn all|learn all --watch|' "$UNITS/trimtab-learn.service" > "$UNITS/trimtab-watch.service"
        mkdir -p "$UNITS/trimtab-agent.service.d"
        for name in learn watch; do
            install -m 644 "$DEPLOY/systemd/trimtab-$name.timer" "$UNITS/trimtab-$name.timer"
        done
        install -m 644 "$DEPLOY/systemd/trimtab-agent-learn.conf" "$UNITS/trimtab-agent.service.d/learn.conf"
        say "wrote $UNITS/trimtab-learn.timer, trimtab-watch.timer, trimtab-watch.service, trimtab-agent.service.d/learn.conf"
    fi
    render "$DEPLOY/trimtab" > "$PREFIX/bin/trimtab"
    chmod 755 "$PREFIX/bin/trimtab"
    say "wrote $PREFIX/bin/trimtab: the command with the service's settings"
}

# Creates the users of a host that learns, and lets the learner's group read the ledger and write models.
share_state() {
    if ! has_systemd; then
        say "note: no systemd runs here, so no user was created and $STATE was not shared with trimtab-learn"
        return 0
    fi
    local again=
    # As long as the agent runs, systemd holds its name for a user that is gone with it.
    if ! grep -q '^trimtab:' /etc/passwd && systemctl is-active --quiet trimtab-agent; then
        again=yes
        systemctl stop trimtab-agent
    fi
    grep -q '^trimtab:' /etc/group || groupadd --system trimtab
    local user
    for user in trimtab trimtab-learn; do
        grep -q "^$user:" /etc/passwd \
            || useradd --system --gid trimtab --home-dir "/var/lib/$user" --no-create-home --shell /usr/sbin/nologin "$user"
    done
    local place=$STATE
    # Until the agent's next start its directory is where systemd keeps those of users without a name of their own.
    [ ! -L "$STATE" ] || place=$(readlink -f "$STATE")
    [ -d "$place" ] || install -d -o trimtab -g trimtab -m 750 "$place"
    install -d -o trimtab -g trimtab -m 2770 "$place/models"
    find "$place" -maxdepth 1 -type f \( -name ledger.db -o -name ledger.db-wal -o -name ledger.db-shm \) -exec chmod g+r {} +
    find "$place/models" -type f -exec chmod g+rw {} +
    if [ -n "$again" ]; then
        systemctl daemon-reload
        systemctl start trimtab-agent
    fi
    say "$STATE/models can be written by trimtab-learn, the ledger can be read"
}

# Whether systemd manages this host: not in containers and chroots, and only for the host's own units.
has_systemd() {
    [ "$UNITS" = /etc/systemd/system ] && [ -d /run/systemd/system ] && command -v systemctl > /dev/null
}

reload_systemd() {
    if has_systemd; then
        systemctl daemon-reload
    else
        say "note: no systemd runs here for $UNITS, so no unit was loaded, started or stopped"
    fi
}
