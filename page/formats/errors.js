/** What is wrong with a file, in words for its owner. */
export class FileError extends Error {}
