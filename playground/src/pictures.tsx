// Images of a question: chosen, pasted or dropped, and sent in the request itself.

import { useRef } from "preact/hooks";

export interface Picture {
    name: string;
    /** A `data:` URL. */
    url: string;
}

const TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp"];

/** What the server takes: images in a request, and bytes of a file. */
const MOST = 32;
const MOST_BYTES = 20 * 1024 * 1024;

function read(file: File): Promise<Picture> {
    return new Promise((resolve, reject) => {
        const reader = new FileReader();
        reader.onload = () => resolve({ name: file.name || "image", url: reader.result as string });
        reader.onerror = () => reject(new Error(`${file.name || "The image"} cannot be read.`));
        reader.readAsDataURL(file);
    });
}

/** Reads the files for a question that has `before` images. Throws where a file is none, or where that is too much. */
export async function readPictures(files: readonly File[], before: number): Promise<Picture[]> {
    for (const file of files) {
        if (!TYPES.includes(file.type)) throw new Error(`${file.name}: images are PNG, JPEG, WebP, GIF or BMP.`);
        if (file.size > MOST_BYTES) throw new Error(`${file.name} has more than 20 MiB.`);
    }
    if (before + files.length > MOST) throw new Error(`A question has ${MOST} images at most.`);
    return Promise.all(files.map(read));
}

/** The pictures, small; with `onRemove` each has a button. */
export function Thumbnails({ pictures, onRemove }: { pictures: readonly Picture[]; onRemove?: (at: number) => void }) {
    if (!pictures.length) return null;
    return (
        <ul class="pictures" aria-label="Images">
            {pictures.map((each, i) => (
                <li key={i}>
                    <img src={each.url} alt={each.name} />
                    {onRemove && (
                        <button
                            type="button"
                            class="quiet"
                            aria-label={`Remove ${each.name}`}
                            onClick={() => onRemove(i)}
                        >
                            Remove
                        </button>
                    )}
                </li>
            ))}
        </ul>
    );
}

/** A button that opens the browser's choice of files. */
export function ChooseFiles({ onFiles }: { onFiles: (files: File[]) => void }) {
    const input = useRef<HTMLInputElement>(null);
    return (
        <>
            <input
                ref={input}
                type="file"
                hidden
                multiple
                accept={TYPES.join(",")}
                aria-label="Image files"
                onChange={(event) => {
                    onFiles([...(event.currentTarget.files ?? [])]);
                    event.currentTarget.value = "";
                }}
            />
            <button type="button" class="quiet" onClick={() => input.current?.click()}>
                Add images
            </button>
        </>
    );
}

/** Returns the files of a paste or of a drop. */
export function filesOf(transfer: DataTransfer | null): File[] {
    return [...(transfer?.files ?? [])];
}
