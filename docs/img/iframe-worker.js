// A page that was opened from a disk may not start a worker: its script runs in a hidden frame instead. For the search.
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget { // the second name is how the search knows
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      inside.document.open();
      inside.postMessage = (data) => {
        const message = new MessageEvent("message", { data });
        this.dispatchEvent(message);
        if (this.onmessage) this.onmessage(message);
      };
      inside.importScripts = (...scripts) => scripts.reduce((before, script) => before.then(() => new Promise((done, failed) => {
        const element = inside.document.createElement("script");
        Object.assign(element, { src: script, onload: done, onerror: failed });
        inside.document.body.append(element);
      })), Promise.resolve());
      this.ready = new Promise((done) => { inside.started = done; });
      this.frame = frame;
      inside.document.write(`<body><script src="${url}"><\/script><script>started()<\/script></body>`);
      inside.document.close();
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
