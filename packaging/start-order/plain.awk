# A function's symbol without the hashes that differ from build to build.
function plain(symbol) {
    sub(/17h[0-9a-f]+E$/, "E", symbol)
    gsub(/Cs[0-9A-Za-z]+_/, "Cs_", symbol)
    return symbol
}
