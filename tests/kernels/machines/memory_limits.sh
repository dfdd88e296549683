# A limit of memory in a control group of version 2: a controller that version 1 has had does not come back at once.
feature "shortage: memory limits of cgroup v2"
if group_of 2 memory; then
    under_memory "cgroup v2 memory.max" $GROUP/memory.max
    no_group
else
    failed "no memory controller of cgroup v2"
fi
