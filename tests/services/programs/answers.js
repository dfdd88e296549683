// Answers each HTTP request with 42, computed by code that V8 compiles while it runs; SIGHUP has it say so.
const { createServer } = require('node:http');
const product = (one, other) => { let sum = 0; for (let i = 0; i < one; i++) sum += other; return sum; };
createServer((request, response) => {
    let answer = 0;
    for (let round = 0; round < 10000; round++) answer = product(6, 7);
    response.end(`${answer}`);
}).listen(8042, '127.0.0.1');
process.on('SIGHUP', () => console.log('has reloaded'));
