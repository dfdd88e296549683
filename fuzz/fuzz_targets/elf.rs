#![no_main]

pagelift_fuzz::fuzz!("elf");
