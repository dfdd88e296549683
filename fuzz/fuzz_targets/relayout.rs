#![no_main]

pagelift_fuzz::fuzz!("relayout");
