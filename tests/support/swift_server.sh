#!/usr/bin/env bash
# OpenStack Swift with its S3 interface on loopback for tests: a store that takes no conditional
# puts. Usage: swift_server.sh FOLDER PORT TLS_PORT PORT PORT PORT ACCOUNT:USER SECRET (it has no
# TLS). Everything lies in FOLDER, and the servers end with this script, which ends with who started
# it. Prints "ready" when it answers.
set -euo pipefail
folder=$1 port=$2 account_port=$4 container_port=$5 object_port=$6 user=$7 secret=$8
cd "$folder"
exec 2>log
need() { command -v "$1" >/dev/null || { echo "there is no $1 here"; exit 127; }; }
for program in swift-proxy-server swift-account-server swift-container-server swift-object-server swift-ring-builder; do
    need $program
done

mkdir -p etc node/d1
printf '[swift-hash]\nswift_hash_path_suffix = tests\nswift_hash_path_prefix = tests\n' >etc/swift.conf
ring() { # NAME PORT
    swift-ring-builder "etc/$1.builder" create 4 1 0 >/dev/null
    swift-ring-builder "etc/$1.builder" add "r1z1-127.0.0.1:$2/d1" 1 >/dev/null
    swift-ring-builder "etc/$1.builder" rebalance >/dev/null
}
ring account "$account_port" &
ring container "$container_port" &
ring object "$object_port" &
wait
common="swift_dir = $folder/etc
devices = $folder/node
mount_check = false
bind_ip = 127.0.0.1
user = $(id -un)
log_address = $folder/no-log
workers = 0
fallocate_reserve = 0
disable_fallocate = true"
for kind in account container object; do
    port_name=${kind}_port
    cat >"etc/$kind-server.conf" <<END
[DEFAULT]
$common
bind_port = ${!port_name}
[pipeline:main]
pipeline = $kind-server
[app:$kind-server]
use = egg:swift#$kind
END
done
cat >etc/proxy-server.conf <<END
[DEFAULT]
$common
bind_port = $port
[pipeline:main]
pipeline = catch_errors cache listing_formats bulk s3api tempauth slo proxy-server
[app:proxy-server]
use = egg:swift#proxy
allow_account_management = true
account_autocreate = true
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:1
[filter:listing_formats]
use = egg:swift#listing_formats
[filter:bulk]
use = egg:swift#bulk
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
[filter:slo]
use = egg:swift#slo
[filter:tempauth]
use = egg:swift#tempauth
user_${user/:/_} = $secret .admin
END
export SWIFT_CONF_DIR=$folder/etc
for kind in account container object proxy; do
    setpriv --pdeathsig KILL "swift-$kind-server" "$folder/etc/$kind-server.conf" >"$kind.out" 2>&1 &
done
listens() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
for ((i = 0; i < 3000; i++)); do
    if listens "$port" && listens "$account_port" && listens "$container_port" && listens "$object_port"; then
        echo ready
        wait
        exit
    fi
    sleep 0.01
done
echo "Swift does not listen on port $port"
exit 1
