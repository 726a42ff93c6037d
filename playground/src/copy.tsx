// A button that copies a text.

import { useEffect, useState } from "preact/hooks";

/** Copies a text, and says whether that was possible. */
async function copy(text: string): Promise<boolean> {
    try {
        await navigator.clipboard.writeText(text);
        return true;
    } catch {
        return copySelected(text); // there is no clipboard for pages that came over plain HTTP, but from localhost
    }
}

function copySelected(text: string): boolean {
    const before = document.activeElement;
    const area = document.createElement("textarea");
    area.className = "sr";
    area.value = text;
    document.body.append(area);
    area.select();
    const isCopied = document.execCommand("copy");
    area.remove();
    if (before instanceof HTMLElement) before.focus();
    return isCopied;
}

export function CopyButton({ text }: { text: string }) {
    const [label, setLabel] = useState("Copy");
    useEffect(() => setLabel("Copy"), [text]);
    return (
        <button
            type="button"
            class="quiet"
            onClick={async () => setLabel((await copy(text)) ? "Copied" : "Cannot copy: select the text")}
        >
            {label}
        </button>
    );
}
