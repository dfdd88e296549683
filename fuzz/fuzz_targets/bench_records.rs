#![no_main]

pagelift_fuzz::fuzz!("bench_records");
