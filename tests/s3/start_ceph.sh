#!/bin/bash
# Start the smallest Ceph that has an Object Gateway: one monitor, one storage daemon in memory, one gateway.
#
#   start_ceph.sh FOLDER GATEWAY_PORT MONITOR_PORT
#
# Prints the process ids when the gateway answers; ending those processes is the caller's part. FOLDER must not exist
# and holds everything, so that deleting it leaves nothing. Everything listens on 127.0.0.1. The user is "testkey" with
# the secret "testsecret12345". Debian packages: radosgw ceph-mon ceph-osd ceph-common.
set -euo pipefail
folder=$1 gateway=$2 monitor=$3
if [ -e "$folder" ]; then
    echo "$folder exists" >&2
    exit 1
fi
mkdir -p "$folder"/{mon,osd,rgw,run,log}
conf=$folder/ceph.conf keyring=$folder/keyring

# Short proposal intervals make the monitor usable in a second instead of a dozen; without tcp_nodelay every
# small answer of the gateway waits 40 ms for an acknowledgement.
cat >"$conf" <<CONF
[global]
fsid = $(cat /proc/sys/kernel/random/uuid)
keyring = $keyring
run dir = $folder/run
admin socket = $folder/run/\$name.asok
pid file = $folder/run/\$name.pid
log file = $folder/log/\$name.log
mon host = [v2:127.0.0.1:$monitor/0,v1:127.0.0.1:$((monitor + 1))/0]
public addr = 127.0.0.1
cluster addr = 127.0.0.1
public network = 127.0.0.0/8
ms bind ipv6 = false
auth allow insecure global id reclaim = false
osd crush chooseleaf type = 0
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pgp num = 8
osd pool default pg autoscale mode = off
mon allow pool size one = true
mon max pg per osd = 1000
mon data = $folder/mon
mon data avail warn = 2
mon data avail crit = 1
[mon]
paxos propose interval = 0.05
paxos min wait = 0.01
[osd]
osd data = $folder/osd
osd objectstore = memstore
memstore device bytes = 8589934592
osd max object size = 134217728
osd crush initial weight = 1
osd class dir = /usr/lib/$(uname -m)-linux-gnu/rados-classes
[client.rgw]
rgw data = $folder/rgw
rgw frontends = beast endpoint=127.0.0.1:$gateway tcp_nodelay=1
rgw dns name = localhost
CONF

make_key() {
    ceph-authtool "$keyring" --gen-key -n "$@" >/dev/null
}
ceph-authtool "$keyring" --create-keyring >/dev/null
make_key mon. --cap mon 'allow *'
make_key client.admin --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *'
make_key osd.0 --cap mon 'allow profile osd' --cap osd 'allow *' --cap mgr 'allow profile osd'
make_key client.rgw --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *'

fsid=$(sed -n 's/^fsid = //p' "$conf")
monmaptool --create --fsid "$fsid" --addv a "[v2:127.0.0.1:$monitor,v1:127.0.0.1:$((monitor + 1))]" "$folder/monmap" >/dev/null
ceph-mon -c "$conf" -i a --mkfs --monmap "$folder/monmap" --keyring "$keyring"

pids=()
stop_all() {
    for pid in "${pids[@]}"; do kill -KILL "$pid" 2>/dev/null || true; done
}
trap stop_all ERR

start() {
    "$@" >"$folder/log/$1.out" 2>&1 &
    pids+=($!)
}
wait_for() {
    for _ in $(seq 300); do
        if "$@" >/dev/null 2>&1; then return; fi
        kill -0 "${pids[-1]}"
        sleep 0.1
    done
    echo "gave up waiting for: $*" >&2
    return 1
}
osd_is_up() { timeout 5 ceph -c "$conf" --connect-timeout 2 osd stat | grep -q '1 up'; }

start ceph-mon -c "$conf" -i a -f
wait_for timeout 5 ceph -c "$conf" --connect-timeout 2 -s
uuid=$(cat /proc/sys/kernel/random/uuid)
ceph -c "$conf" osd new "$uuid" >/dev/null
ceph-osd -c "$conf" -i 0 --mkfs --osd-uuid "$uuid" >"$folder/log/mkfs.out" 2>&1
ceph -c "$conf" osd crush add osd.0 1 root=default host=localhost >/dev/null 2>&1
start ceph-osd -c "$conf" -i 0 -f
wait_for osd_is_up
start radosgw -c "$conf" -n client.rgw -f
wait_for bash -c "exec 3<>/dev/tcp/127.0.0.1/$gateway"
radosgw-admin -c "$conf" user create --uid tests --display-name tests \
    --access-key testkey --secret-key testsecret12345 >"$folder/log/user.out" 2>&1
echo "${pids[@]}"
