#![no_main]

pagelift_fuzz::fuzz!("trace_formats");
