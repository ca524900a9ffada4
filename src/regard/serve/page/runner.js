// Runs the requests of one tab: a new request aborts the previous one, which frees its place in
// the service. Progress and errors appear in the status line of the tab.

import { announce } from "./dom.js";

const NOTICE_DELAY = 300;  // milliseconds without a result until the status line shows progress

export class Runner {
  constructor(panel) {
    this.status = panel.querySelector("[data-status]");
    this.panel = panel;
    this.controller = null;
  }

  get running() {
    return this.controller !== null;
  }

  show(text, kind = "note") {
    this.status.textContent = text;
    this.status.dataset.kind = kind;
  }

  cancel() {
    this.controller?.abort();
    this.finish(this.controller);
  }

  finish(controller) {
    if (this.controller !== controller) return;
    this.controller = null;
    clearTimeout(this.timer);
    this.panel.removeAttribute("aria-busy");
    this.show("");
  }

  // Call `work({signal, onBusy})`. Returns its result, or null if it was aborted or has failed.
  async run(work) {
    this.cancel();
    const controller = this.controller = new AbortController();
    this.panel.setAttribute("aria-busy", "true");
    this.timer = setTimeout(() => this.show("Working…"), NOTICE_DELAY);
    const onBusy = (seconds) => {
      clearTimeout(this.timer);
      this.show(seconds ? `The service is busy: next try in ${seconds} s.` : "Trying again…", "busy");
    };
    try {
      const result = await work({ signal: controller.signal, onBusy });
      if (this.controller !== controller) return null;
      this.finish(controller);
      return result;
    } catch (error) {
      if (controller.signal.aborted) return null;
      this.finish(controller);
      this.show(error.message, "error");
      announce(error.message);
      return null;
    }
  }
}
