#!/usr/bin/env bash
# A Ceph object gateway on loopback for tests: one monitor, one OSD in memory, radosgw. Usage:
# s3_server.sh FOLDER PORT TLS_PORT MONITORS_PORT - - ACCESS_KEY SECRET, with server.crt and
# server.key in FOLDER. Everything lies there, and the daemons end with this script, which ends with
# who started it. Prints "ready" when it answers. The gateway's process is in
# rgw.pid; when it is killed, another one comes.
set -euo pipefail
folder=$1 port=$2 tls_port=$3 mon_port=$4 access=$7 secret=$8
cd "$folder"
exec 2>log
need() { command -v "$1" >/dev/null || { echo "there is no $1 here"; exit 127; }; }
for program in ceph-mon ceph-osd radosgw radosgw-admin ceph ceph-authtool monmaptool; do need $program; done

fsid=$(cat /proc/sys/kernel/random/uuid) osd=$(cat /proc/sys/kernel/random/uuid)
cat >ceph.conf <<END
[global]
fsid = $fsid
mon host = v2:127.0.0.1:$mon_port
ms bind msgr1 = false
public addr = 127.0.0.1
cluster addr = 127.0.0.1
keyring = $folder/keyring
run dir = $folder
admin socket = $folder/\$cluster-\$name-\$pid.asok
log file = $folder/\$name.log
log max recent = 10
crash dir = $folder
mon data = $folder/mon
mon initial members = a
mon allow pool size one = true
mon warn on pool no redundancy = false
mon data avail crit = 0
paxos propose interval = 0.02
paxos min wait = 0.01
osd data = $folder/osd
osd objectstore = memstore
memstore device bytes = 2147483648
osd max object name len = 460
osd max object namespace len = 64
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pgp num = 8
osd crush chooseleaf type = 0
rgw frontends = beast endpoint=127.0.0.1:$port tcp_nodelay=1 ssl_endpoint=127.0.0.1:$tls_port ssl_certificate=$folder/server.crt ssl_private_key=$folder/server.key
rgw data = $folder
rgw run sync thread = false
rgw enable quota threads = false
rgw enable usage log = false
rgw gc obj min wait = 1
rgw gc processor period = 1
rgw dns name = localhost
rgw enable lc threads = false
rgw thread pool size = 64
rgw max concurrent requests = 1024
END
export CEPH_CONF=$folder/ceph.conf CEPH_ARGS=--id=admin
ceph-authtool --create-keyring keyring --gen-key -n mon. --cap mon 'allow *' >/dev/null
ceph-authtool keyring --gen-key -n client.admin --cap mon 'allow *' --cap osd 'allow *' \
    --cap mgr 'allow *' >/dev/null
ceph-authtool keyring --gen-key -n client.rgw --cap mon 'allow *' --cap osd 'allow *' >/dev/null
ceph-authtool keyring --gen-key -n osd.0 --cap mon 'allow profile osd' --cap osd 'allow *' >/dev/null
monmaptool --create --fsid "$fsid" --addv a "[v2:127.0.0.1:$mon_port]" monmap >/dev/null
mkdir mon osd
unset CEPH_ARGS
ceph-mon --mkfs -i a --monmap monmap --keyring keyring
setpriv --pdeathsig KILL ceph-mon -f -i a >mon.out 2>&1 &
ceph osd new "$osd" 0 >/dev/null
ceph-osd -i 0 --mkfs --no-mon-config --osd-uuid "$osd"
setpriv --pdeathsig KILL ceph-osd -f -i 0 >osd.out 2>&1 &
radosgw-admin user create --uid=tests --display-name=tests --access-key="$access" \
    --secret="$secret" >/dev/null
gateway() {
    setpriv --pdeathsig KILL radosgw -f -n client.rgw >>rgw.out 2>&1 &
    echo $! >rgw.pid
    for ((i = 0; i < 2000; i++)); do
        if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then return; fi
        sleep 0.01
    done
    echo "radosgw does not listen on port $port"
    exit 1
}
gateway
echo ready
while :; do # a gateway that is killed comes again
    wait "$(cat rgw.pid)" || true
    gateway
done
