// Characters that change how others are shown: they are spelled out where they could mislead.

const CONTROL = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;

function code(character: string): string {
    return `⟨U+${character.codePointAt(0)!.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

/** Returns code with its invisible and direction-changing characters spelled out. */
export function spelledOut(text: string): string {
    return text.replace(CONTROL, code);
}

/** Returns a program with the base64 of its images cut short. */
export function shortened(text: string): string {
    return text.replace(/[A-Za-z0-9+/=]{400,}/g, (all) => `${all.slice(0, 40)}⟨${all.length - 40} characters more⟩`);
}

/** Returns a token's text with its white space made visible. */
export function tokenText(text: string): string {
    if (!text) return "∅";
    return spelledOut(text).replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/^ | $/g, "·");
}

export function percent(logprob: number): string {
    const share = Math.exp(logprob) * 100;
    return share >= 99.95
        ? "100%"
        : share >= 1
          ? `${share.toFixed(1)}%`
          : share >= 0.01
            ? `${share.toFixed(2)}%`
            : "<0.01%";
}
