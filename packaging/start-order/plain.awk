# A function's symbol without the hashes that differ from build to build, and without the numbers of impl blocks, which differ
# once a block is added before them.
function plain(symbol) {
    sub(/17h[0-9a-f]+E$/, "E", symbol)
    gsub(/Cs[0-9A-Za-z]+_/, "Cs_", symbol)
    gsub(/Xs[0-9A-Za-z]*_/, "X_", symbol)
    gsub(/Ms[0-9A-Za-z]*_/, "M_", symbol)
    return symbol
}
