/* The search runs in a worker, and browsers refuse workers to pages that are opened from the disk. There, a hidden frame
   does its work: a window of its own, in which the worker's script finds the few functions that it asks for. */
if (location.protocol === "file:") {
  const load = (frame, address) =>
    new Promise((resolve, reject) => {
      const script = frame.contentDocument.createElement("script");
      script.src = new URL(address, location).href;
      script.onload = resolve;
      script.onerror = reject;
      frame.contentDocument.head.append(script);
    });

  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.inside.importScripts = (...addresses) =>
        addresses.reduce((before, next) => before.then(() => load(frame, next)), Promise.resolve());
      this.ready = load(frame, address);
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
