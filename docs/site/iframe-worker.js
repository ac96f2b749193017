// Lets the search of the site run in a hidden frame if a page is opened from a file, because browsers
// start no workers for such pages.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      // Messages that came before the script was loaded; null afterwards.
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<!DOCTYPE html>";
      frame.addEventListener("load", () => this.start(frame.contentWindow, url), { once: true });
      document.body.append(frame);
    }

    async start(scope, url) {
      const load = (source) =>
        new Promise((resolve, reject) => {
          const script = scope.document.createElement("script");
          Object.assign(script, { src: source, onload: resolve, onerror: reject });
          scope.document.head.append(script);
        });
      scope.importScripts = (...sources) => Promise.all(sources.map(load));
      scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      await load(new URL(url, location.href).href);
      const waiting = this.waiting;
      this.waiting = null;
      this.scope = scope;
      waiting.forEach((data) => this.postMessage(data));
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.scope.dispatchEvent(new MessageEvent("message", { data }));
    }
  };
}
