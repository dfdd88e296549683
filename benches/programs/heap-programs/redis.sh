# redis-server with 300,000 keys: what 500,000 random GETs cost the server.
. "$(dirname "$0")/common.sh"
prepare() { :; }
cli() { redis-cli -s "$PWD/socket" "$@"; }
run() {
    $RUN redis-server --port 0 --unixsocket "$PWD/socket" --save '' --dir "$PWD" >log 2>&1 &
    server=$!
    trap 'kill $server 2>/dev/null || true' EXIT
    for _ in $(seq 100); do [ "$(cli ping 2>/dev/null)" = PONG ] && break; sleep 0.1; done
    for part in $(seq 0 2); do
        cli eval "for i = ARGV[1] * 100000, ARGV[1] * 100000 + 99999 do
            redis.call('set', string.format('key:%012d', i), string.rep(tostring(i % 10), 100)) end" 0 "$part" >/dev/null
    done
    before=$(seconds_of $server)
    redis-benchmark -s "$PWD/socket" -q -r 300000 -n 500000 -P 50 -c 8 get key:__rand_int__ >/dev/null
    after=$(seconds_of $server)
    awk "BEGIN { print $after - $before, 0 }" >>cpu
    cli dbsize
    cli eval "local s = 0 for i = 0, 299999, 37 do
        s = s + tonumber(redis.call('get', string.format('key:%012d', i)):sub(5, 9)) end return s" 0
    # Frees all, for the memory after the end.
    cli flushall sync
    cli shutdown nosave
    wait $server
}
"$1"
