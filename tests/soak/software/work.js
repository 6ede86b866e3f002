// Workers, large buffers, and memory of WebAssembly's that grows.
'use strict';
const { Worker, isMainThread, parentPort, workerData } = require('node:worker_threads');

function garbage(seed) {
  const kept = [];
  let sum = 0;
  for (let i = 0; i < 3000; i++) {
    const block = { text: 'x'.repeat(1 + ((i * seed * 31) % 500)), more: [i, seed] };
    if (i % 16 === 0) kept.push(block);
  }
  for (const block of kept) sum += block.text.length + block.more[0];
  return sum;
}

function buffers(seed) {
  let sum = 0;
  for (const size of [1 << 16, 1 << 20, 1 << 24]) {
    const buffer = Buffer.alloc(size, seed & 127);
    for (let i = 0; i < size; i += 4096) sum += buffer[i];
  }
  return sum;
}

function wasm(seed) {
  const memory = new WebAssembly.Memory({ initial: 1, maximum: 2048 });
  let sum = 0;
  for (let i = 0; i < 64; i++) {
    const before = memory.grow(4);
    const bytes = new Uint8Array(memory.buffer);
    bytes[before * 65536] = i + seed;
    sum += bytes[before * 65536] + bytes.length / 65536;
  }
  return sum;
}

function shared(seed) {
  const bytes = new Uint8Array(new SharedArrayBuffer(1 << 22));
  bytes.fill(seed & 255);
  return bytes.reduce((sum, byte) => sum + byte, 0);
}

async function main() {
  const rounds = Number(process.argv[2]);
  let sum = 0;
  for (let round = 0; round < rounds; round++) {
    const workers = [1, 2, 3, 4].map((seed) => new Promise((resolve, reject) => {
      const worker = new Worker(__filename, { workerData: seed });
      worker.on('message', resolve);
      worker.on('error', reject);
    }));
    for (const part of await Promise.all(workers)) sum += part;
    if (global.gc) global.gc();
  }
  console.log(`sum ${sum}`);
}

if (isMainThread) {
  main();
} else {
  const seed = workerData;
  parentPort.postMessage(garbage(seed) + buffers(seed) + wasm(seed) + shared(seed));
}
