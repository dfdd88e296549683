# Pools of each size of a 64-bit ARM kernel with base pages of 4 KiB; the pool of 1 GiB is reserved at boot.
pool 0
for kib in 64 2048 32768; do
    echo 2 >/sys/kernel/mm/hugepages/hugepages-${kib}kB/nr_hugepages
    size_is_used $kib
    echo 0 >/sys/kernel/mm/hugepages/hugepages-${kib}kB/nr_hugepages
done
size_is_used 1048576
echo 0 >/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages
