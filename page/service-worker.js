// Keeps the page for use without a network: all of its files, in one version. A newer version waits
// until no page of this one is open, so that no page has files of two versions. It answers requests for
// these files only, and sends nothing anywhere. Its answers isolate the page from other sites, which
// lets workers share memory also where the host does not send these headers.

const VERSION = "__VERSION__";
const FILES = [/* FILES */];
const CACHE = `integrodiff-${VERSION}`;

self.addEventListener("install", (event) => {
  const fill = async () => {
    const cache = await caches.open(CACHE);
    await cache.addAll(FILES.map((name) => new Request(name, { cache: "reload" })));
  };
  event.waitUntil(fill());
});

self.addEventListener("activate", (event) => {
  const clean = async () => {
    for (const name of await caches.keys())
      if (name.startsWith("integrodiff-") && name !== CACHE) await caches.delete(name);
    await self.clients.claim();
  };
  event.waitUntil(clean());
});

self.addEventListener("fetch", (event) => {
  if (event.request.method !== "GET") return;
  const answer = async () => {
    const cache = await caches.open(CACHE);
    const found = await cache.match(event.request, { ignoreSearch: true });
    if (!found) return fetch(event.request);
    const headers = new Headers(found.headers);
    headers.set("Cross-Origin-Opener-Policy", "same-origin");
    headers.set("Cross-Origin-Embedder-Policy", "require-corp");
    headers.set("Cross-Origin-Resource-Policy", "same-origin");
    return new Response(found.body, { status: found.status, headers });
  };
  event.respondWith(answer());
});
