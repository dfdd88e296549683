"""The case of the articles about calloc: cffi's new() takes zeroed memory from calloc and gives it back, untouched."""
import sys
import cffi

ffi = cffi.FFI()
for _ in range(int(sys.argv[1])):
    ffi.new("char[]", 100 << 20)
