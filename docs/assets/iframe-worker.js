/* Search for pages that are opened as files.

   The search of the theme runs in a Web Worker. Browsers do not start one for a page with the address
   file:///..., so this script runs the code of the worker in a hidden frame instead. The theme would
   load a script for this purpose from the network; this one replaces it. */

if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.onmessage = this.onerror = null
      this.waiting = []
      window.addEventListener("message", event => {
        if (event.source !== this.frame.contentWindow) return
        const copy = new MessageEvent("message", { data: event.data })
        this.dispatchEvent(copy)
        if (this.onmessage) this.onmessage(copy)
      })
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.frame.srcdoc = `<!doctype html><script>
        self.postMessage = data => parent.postMessage(data, "*")
        self.importScripts = (...urls) => Promise.all(urls.map(url => new Promise(done => {
          const script = document.createElement("script")
          script.src = url
          script.onload = done
          document.head.append(script)
        })))
      </scr` + `ipt><script src="${url}"></scr` + `ipt>`
      this.frame.onload = () => {
        this.loaded = true
        for (const data of this.waiting) this.postMessage(data)
      }
      document.addEventListener("DOMContentLoaded", () => document.body.append(this.frame))
      if (document.readyState !== "loading") document.body.append(this.frame)
    }

    postMessage(data) {
      if (!this.loaded) this.waiting.push(data)
      else this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
