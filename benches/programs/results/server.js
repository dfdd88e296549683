// Answers each request with a page that it makes: JSON of a few hundred objects.
const http = require("http");
const table = Array.from({ length: 300 }, (_, number) => ({ number, text: "text" + number * 7919 }));
http.createServer((_, answer) => answer.end(JSON.stringify(table))).listen(Number(process.argv[2]), "127.0.0.1");
