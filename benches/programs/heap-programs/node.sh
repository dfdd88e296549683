# A Map of 500,000 strings, and random look-ups in it.
. "$(dirname "$0")/common.sh"
prepare() { :; }
run() { cpu $RUN node --max-old-space-size=3000 -e '
const table = new Map(), count = 500000;
let state = 1n, total = 0, seed = 1;
for (let number = 0; number < count; number++) table.set(number * 7919, "text" + number);
for (let step = 0; step < 500000; step++) {
    seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
    total += table.get((seed % count) * 7919).length;
}
console.log(total);'; }
"$1"
