# Debian packages that the commands need; sourced by ./demo, ./check and tests/bench/run.
# need_packages NAME... installs those that are missing, saying which, and nothing when all are there.

packages_build="build-essential cmake ninja-build pkg-config libuv1-dev libcjson-dev libxxhash-dev
 zlib1g-dev libdnnl-dev libhiredis-dev libssl-dev libcurl4-openssl-dev"
packages_data="dataset-fashion-mnist"
packages_test="libcriterion-dev clang clang-format clang-tidy libclang-rt-14-dev libomp-dev python3 locales"
packages_test_servers="redis-server openssl radosgw ceph-mon ceph-osd ceph-common"
packages_test_long="swift-proxy swift-account swift-container swift-object"
packages_bench_step="python3-torch libopenblas0-openmp"
packages_bench_redis="redis-server iproute2"
packages_bench_s3="radosgw ceph-mon ceph-osd ceph-common openssl"

need_packages() {
    local missing=() name sudo=()
    for name in "$@"; do
        dpkg-query -W -f '${db:Status-Status}\n' "$name" 2>/dev/null | grep -qx installed || missing+=("$name")
    done
    [ ${#missing[@]} -eq 0 ] && return 0
    if [ "$(id -u)" -ne 0 ]; then
        if ! command -v sudo >/dev/null; then
            echo "These packages are missing: ${missing[*]}" >&2
            echo "Install them as root: apt-get install ${missing[*]}" >&2
            return 3
        fi
        sudo=(sudo)
    fi
    echo "installing: ${missing[*]}"
    local log apt=(env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 -qq)
    log=$(mktemp)
    if ! { "${sudo[@]}" "${apt[@]}" install -y --no-install-recommends "${missing[@]}" ||
           { "${sudo[@]}" "${apt[@]}" update &&
             "${sudo[@]}" "${apt[@]}" install -y --no-install-recommends "${missing[@]}"; }; } \
           >"$log" 2>&1 </dev/null; then
        tail -n 5 "$log" >&2
        rm -f "$log"
        echo "The packages could not be installed: ${missing[*]}" >&2
        return 3
    fi
    rm -f "$log"
}
