// Answers GET /N with N * 7919 + 1, computed with strings, maps and a regular expression; ends with its input.
const http = require('http');
let served = 0;
const server = http.createServer((request, response) => {
    const n = BigInt(/\d+/.exec(request.url)[0]);
    const map = new Map(Array.from({ length: 200 }, (_, i) => [`key ${i}`, n * BigInt(i)]));
    const sum = JSON.parse(JSON.stringify({ answer: String(map.get('key 100') / 100n * 7919n + 1n) }));
    served++;
    response.end(sum.answer);
});
server.listen(0, '127.0.0.1', () => console.log(`port ${server.address().port}`));
process.stdin.on('end', () => { console.log(`served ${served}`); process.exit(0); }).resume();
