// Adds up lengths of JSON texts of an object with many keys.
const table = {};
for (let number = 0; number < 50021; number++) table['key' + number] = { number, text: 'x'.repeat(number % 20) };
let sum = 0;
for (let round = 0; round < 2e6; round++) sum += JSON.stringify(table['key' + (round * 7919) % 50021]).length;
console.log(sum);
