// Records what limiters of Node.js send, head by head, for the tests beside this file.
//
//   npm install express@5 express-rate-limit@8 hono@4 @hono/node-server@2 hono-rate-limiter@0.5
//   node record.mjs <the folder with node_modules>
//
// It starts each server on a free port, sends three requests, of which two are allowed, and writes the heads of the responses.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import { once } from "node:events";
import { writeFileSync } from "node:fs";
import net from "node:net";
import path from "node:path";

const root = path.resolve(process.argv[2] ?? ".");
const require = createRequire(path.join(root, "package.json"));
const load = (name) => import(pathToFileURL(require.resolve(name)));
const version = (name) => require(path.join(root, "node_modules", name, "package.json")).version;

// The head of a response, byte for byte, as another client than that of Node.js sees it.
async function head(port) {
    const socket = net.connect(port, "127.0.0.1");
    socket.end("GET / HTTP/1.1\r\nHost: api.example\r\nConnection: close\r\n\r\n");
    let text = "";
    socket.setEncoding("latin1");
    socket.on("data", (chunk) => (text += chunk));
    await once(socket, "close");
    return text.split("\r\n\r\n")[0].replaceAll("\r\n", "\n");
}

async function record(file, source, server) {
    await once(server, "listening");
    const heads = [];
    for (let request = 0; request < 3; request++) heads.push(await head(server.address().port));
    server.close();
    writeFileSync(file, `# ${source}, Node.js ${process.versions.node}\n\n${heads.join("\n\n")}\n`);
}

const express = (await load("express")).default;
const { rateLimit } = await load("express-rate-limit");
for (const draft of ["draft-6", "draft-7", "draft-8"]) {
    const app = express().disable("x-powered-by");
    app.use(rateLimit({ windowMs: 60_000, limit: 2, standardHeaders: draft, legacyHeaders: draft === "draft-6" }));
    app.get("/", (_, response) => response.send("hello"));
    const source = `express-rate-limit ${version("express-rate-limit")} on express ${version("express")}, ${draft}`;
    await record(`express-rate-limit-${draft}.txt`, source, app.listen(0, "127.0.0.1"));
}

const { Hono } = await load("hono");
const { serve } = await load("@hono/node-server");
const { rateLimiter } = await load("hono-rate-limiter");
for (const draft of ["draft-6", "draft-7"]) {
    const app = new Hono();
    app.use(rateLimiter({ windowMs: 60_000, limit: 2, standardHeaders: draft, keyGenerator: () => "alice" }));
    app.get("/", (context) => context.text("hello"));
    const source = `hono-rate-limiter ${version("hono-rate-limiter")} on hono ${version("hono")}, ${draft}`;
    await record(`hono-rate-limiter-${draft}.txt`, source, serve({ fetch: app.fetch, port: 0, hostname: "127.0.0.1" }));
}
process.exit();
