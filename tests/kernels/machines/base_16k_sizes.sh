# Pools of both sizes of a 64-bit ARM kernel with base pages of 16 KiB that programs of some megabytes can use.
for kib in 2048 32768; do
    echo 2 >/sys/kernel/mm/hugepages/hugepages-${kib}kB/nr_hugepages
    size_is_used $kib
    echo 0 >/sys/kernel/mm/hugepages/hugepages-${kib}kB/nr_hugepages
done
