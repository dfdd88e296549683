//! A program with the linker flags of `.cargo/config.toml`.

fn main() {
    println!("each segment begins on a huge page");
}
