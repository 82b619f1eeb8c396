# Read by scripts/setup and scripts/servers: what is missing on this machine, and how to get it.

say() { echo "setup: $*" >&2; }
fail() {
    say "$1; to fix it: $2"
    exit 1
}

can_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

# Installs Debian packages; in turn, because two setups may want that at the same time.
install_packages() {
    local what=$1
    shift
    say "installing $* with apt-get, because $what is missing"
    local log
    log=$( (flock 8 && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y -o DPkg::Lock::Timeout=300 "$@") \
        8<setup.py 2>&1) || { say "apt-get said: ${log##*$'\n'}" && return 1; }
}

# For what nothing works without.
need_packages() {
    local what=$1
    shift
    if ! can_install || ! install_packages "$what" "$@"; then
        fail "$what is missing" "install it, on Debian with: sudo apt-get install $*"
    fi
}
