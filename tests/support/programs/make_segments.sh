#!/bin/sh
# Writes an assembler file with $1 sections, each far from the next so that the linker gives it a separate segment, and
# the file `segments.options` with the linker options for their addresses. A section is 1,150 blocks of 512 words; word
# 0 of block b is b times the section's number plus one, every other word is b.
count=$1
blocks=1150
: >segments.options
number=0
while [ $number -lt "$count" ]; do
    case $((number % 3)) in
        0) flags='"ax"'; first='mov $NUMBER, %eax; ret' ;;
        1) flags='"a"'; first='.quad 0' ;;
        2) flags='"aw"'; first='.quad 0' ;;
    esac
    address=$((0x10000000 + number * 0x700000 + (number % 5) * 0x3000))
    printf ' -Wl,--section-start=.segment%d=%#x' $number $address >>segments.options
    echo ".section .segment$number, $flags, @progbits"
    echo "segment$number: $(echo "$first" | sed "s/NUMBER/$number/")"
    echo ".balign 8, 0x90; .fill 511, 8, 0"
    echo ".set b, 1; .rept $blocks - 1; .quad b * ($number + 1); .fill 511, 8, b; .set b, b + 1; .endr"
    number=$((number + 1))
done
echo '.section .rodata; .balign 8; .globl segments, segment_count'
echo "segment_count: .quad $count"
echo 'segments:'
number=0
while [ $number -lt "$count" ]; do
    echo ".quad segment$number, $blocks, $((number % 3))"
    number=$((number + 1))
done
echo '.section .note.GNU-stack, "", @progbits'
