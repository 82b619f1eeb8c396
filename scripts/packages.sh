# Sourced by scripts/setup and scripts/servers: finds missing packages of this machine, and installs them.

say() { echo "setup: $*" >&2; }
fail() {
    say "$1; to fix it: $2"
    exit 1
}

can_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

# Installs Debian packages, under a lock, because two setups may run at the same time.
install_packages() {
    local what=$1
    shift
    say "installing $* with apt-get, because $what is missing"
    local log
    log=$( (flock 8 && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y -o DPkg::Lock::Timeout=300 "$@") \
        8<setup.py 2>&1) || { say "apt-get failed: ${log##*$'\n'}" && return 1; }
}

# For required packages.
need_packages() {
    local what=$1
    shift
    if ! can_install || ! install_packages "$what" "$@"; then
        fail "$what is missing" "install it, on Debian with: sudo apt-get install $*"
    fi
}
