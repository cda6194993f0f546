#!/bin/sh
# Usage: ledger-id.sh mysql|postgres [host [port [folder]]]
# Writes the ledger's ID to the file that the gateway reads. Does nothing if
# HOLDFAST_DB is another kind of database.
set -eu

kind=$1 host=${2:-} port=${3:-} folder=${4:-/run/holdfast}
case ${HOLDFAST_DB%%:*} in
mysql) is=mysql ;;
postgres | postgresql) is=postgres ;;
*) is= ;;
esac
[ "$is" = "$kind" ] || exit 0

# The passwords are in MYSQL_PWD and PGPASSWORD.
case $kind in
mysql)
	id=$(mariadb --host="${host:-mariadb}" --port="${port:-3306}" --protocol=tcp --user="${MYSQL_USER:-holdfast}" --skip-column-names --batch \
		--execute='SELECT HEX(id) FROM ledger' "${MYSQL_DATABASE:-holdfast}")
	;;
postgres)
	id=$(psql --host="${host:-postgres}" --port="${port:-5432}" --username="${PGUSER:-holdfast}" --dbname="${PGDATABASE:-holdfast}" \
		--no-psqlrc --tuples-only --no-align --command='SELECT id FROM ledger')
	;;
esac
[ -n "$id" ] || { echo "reading the ledger's ID: there is none; run api migrate up" >&2; exit 1; }
echo "$id" >"$folder/ledger-id.new"
mv "$folder/ledger-id.new" "$folder/ledger-id" # so that the gateway never reads half of it
