# A memory limit in a control group of version 2; separate, because a controller that version 1 has used does not return
# at once.
feature "shortage: memory limits of cgroup v2"
if group_of 2 memory; then
    under_memory "cgroup v2 memory.max" $GROUP/memory.max
    no_group
else
    failed "no memory controller of cgroup v2"
fi
