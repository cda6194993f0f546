#!/bin/sh
# Usage: create-cluster.sh host:port…
# Creates a cluster of masters from the nodes, unless they already are one, and
# waits until it is ready. The password is in REDISCLI_AUTH.
set -eu

addresses=
for node; do
	host=${node%:*} port=${node##*:}
	# Cluster nodes need addresses, not names.
	address=$(getent ahostsv4 "$host" | awk 'NR == 1 {print $1}')
	[ -n "$address" ] || { echo "resolving $host: no IPv4 address" >&2; exit 1; }
	addresses="$addresses $address:$port"
done

ready() {
	for node in $addresses; do
		redis-cli -h "${node%:*}" -p "${node##*:}" cluster info | grep -q cluster_state:ok || return 1
	done
}

ready && exit 0
# shellcheck disable=SC2086
redis-cli --cluster create $addresses --cluster-yes
tries=0
until ready; do
	tries=$((tries + 1))
	[ $tries -lt 150 ] || { echo "waiting for the cluster: not ready after 30 s" >&2; exit 1; }
	sleep 0.2
done
