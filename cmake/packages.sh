# Sourced by the run scripts: installs Debian or Ubuntu packages that are missing.

# What an example needs to build, and what the tests and the checks of CI need besides.
packages_build="g++ cmake ninja-build nlohmann-json3-dev libpcre2-dev libutf8proc-dev"
packages_example="$packages_build libcli11-dev libreadline-dev"
packages_npu="libxrt-dev uuid-dev"
packages_test="$packages_example $packages_npu libeigen3-dev doctest-dev python3 python3-jinja2 pkg-config xz-utils"
packages_bench="$packages_build libeigen3-dev libbenchmark-dev python3 python3-matplotlib"
packages_peer="python3-pip"
packages_clang="clang libclang-rt-dev"
packages_ci="$packages_test $packages_bench $packages_clang python3-venv"

# need PACKAGE…: installs those that are missing, as root or through sudo.
need() {
    command -v dpkg-query >/dev/null 2>&1 || {
        echo "not a Debian or Ubuntu machine: make sure that these are installed: $*" >&2
        return 0
    }
    missing=
    for package in "$@"; do
        case $(dpkg-query -W -f '${Status}' "$package" 2>/dev/null) in
            "install ok installed") ;;
            *) missing="$missing $package" ;;
        esac
    done
    [ -n "$missing" ] || return 0
    echo "installing:$missing" >&2
    as_root=
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null 2>&1 || {
            echo "neither root nor sudo; as root: apt-get install$missing" >&2
            return 1
        }
        as_root=sudo
    fi
    # $missing holds package names only. Nothing is printed on standard output: it belongs to the program that is run.
    # shellcheck disable=SC2086
    {
        $as_root apt-get -q update && $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends $missing
    } </dev/null >&2 || {
        echo "could not install:$missing" >&2
        return 1
    }
}

# at_least NEEDED FOUND: compares versions like 3.25.1.
at_least() {
    [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]
}

# check_tools: says so where a tool is too old for us, and picks a newer compiler where one is installed.
check_tools() {
    found=$(cmake --version | sed -n 's/^cmake version //p')
    at_least 3.25 "$found" || {
        echo "cmake $found is too old; 3.25 is needed (Debian 12, Ubuntu 24.04 or later have it)" >&2
        return 1
    }
    if [ -z "${CXX:-}" ]; then
        found=$(g++ -dumpfullversion)
        if ! at_least 12 "$found"; then
            for newer in g++-14 g++-13 g++-12; do
                if command -v "$newer" >/dev/null 2>&1; then
                    CXX=$newer
                    export CXX
                    return 0
                fi
            done
            echo "g++ $found is too old; 12 is needed" >&2
            return 1
        fi
    fi
}

# jobs: how many compilers at once: one a core, and no more than memory allows (about 1.5 GiB each).
jobs() {
    cores=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
    room=$(awk '/^MemAvailable:/ { print int($2 / 1572864) }' /proc/meminfo 2>/dev/null)
    [ "${room:-1}" -ge 1 ] || room=1
    if [ "$cores" -lt "${room:-$cores}" ]; then echo "$cores"; else echo "${room:-$cores}"; fi
}
