# A heap on the pool leaves it at a fork, while the program's other threads are stopped: every interrupted call
# continues with the same result.
echo "kernel $(uname -r) on $(uname -m)"
echo madvise >/sys/kernel/mm/transparent_hugepage/enabled
pool 100

# on_pool NAME PROGRAM WORDS...: the program, which checks itself, succeeds with its heap on the pool, and the pool is
# as full as before.
on_pool() {
    name=$1
    shift
    before=$(free_pages)
    timeout -s KILL 600 pagelift run --heap=$((huge_kib * 1024)) --heap-reserve=$((64 * 1024 * 1024)) -- "$@" >/tmp/out 2>/tmp/err
    status=$?
    settle $before
    said=$(tail -n 3 /tmp/out /tmp/err | tr '\n' ' ')
    if [ $status != 0 ]; then
        failed "$name: status $status, $said"
    elif ! grep -q 'asked of the pool' /tmp/err; then
        failed "$name: the heap is not on the pool: $said"
    elif [ "$(free_pages)" != "$before" ]; then
        failed "$name: $before pages were free, now $(free_pages)"
    else
        ok "$name"
    fi
}

feature "heap on the pool: forks"
on_pool "waits go on" waits_last_as_long_as_they_should
# The filter that it uses exists since Linux 5.19.
case $(uname -r) in
    5.*) ;;
    *) on_pool "a descriptor is closed once" closes_once_while_it_forks ;;
esac
on_pool "threads that block signals" forks_beside_threads_that_block_signals 2
on_pool "threads come and go" forks_while_threads_come_and_go 10
on_pool "a full signal queue" forks_with_a_full_signal_queue
on_pool "the first thread has ended" forks_without_its_first_thread
on_pool "several threads fork" forks_of_several_threads 1 2
