#![no_main]

pagelift_fuzz::fuzz!("image_recipe");
