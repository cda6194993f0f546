#!/bin/sh
# Makes the nodes host:port… one cluster of masters, unless they are one, and
# waits until they agree. The password is in REDISCLI_AUTH.
set -eu

addresses=
for node; do
	host=${node%:*} port=${node##*:}
	# Nodes know each other by address.
	address=$(getent ahostsv4 "$host" | awk 'NR == 1 {print $1}')
	[ -n "$address" ] || { echo "$host is unknown" >&2; exit 1; }
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
	[ $tries -lt 150 ] || { echo "the cluster is not ready" >&2; exit 1; }
	sleep 0.2
done
