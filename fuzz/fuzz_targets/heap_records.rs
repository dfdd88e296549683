#![no_main]

pagelift_fuzz::fuzz!("heap_records");
