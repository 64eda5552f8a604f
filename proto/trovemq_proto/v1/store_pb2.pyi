from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ScrubRequest(_message.Message):
    __slots__ = ("bytes_per_second",)
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    bytes_per_second: int
    def __init__(self, bytes_per_second: _Optional[int] = ...) -> None: ...

class ScrubReply(_message.Message):
    __slots__ = ("findings", "position", "begin", "end", "records", "units", "items", "damages", "notes", "done")
    class Finding(_message.Message):
        __slots__ = ("file", "offset", "what", "note")
        FILE_FIELD_NUMBER: _ClassVar[int]
        OFFSET_FIELD_NUMBER: _ClassVar[int]
        WHAT_FIELD_NUMBER: _ClassVar[int]
        NOTE_FIELD_NUMBER: _ClassVar[int]
        file: str
        offset: int
        what: str
        note: bool
        def __init__(self, file: _Optional[str] = ..., offset: _Optional[int] = ..., what: _Optional[str] = ..., note: _Optional[bool] = ...) -> None: ...
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    DAMAGES_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    findings: _containers.RepeatedCompositeFieldContainer[ScrubReply.Finding]
    position: int
    begin: int
    end: int
    records: int
    units: int
    items: int
    damages: int
    notes: int
    done: bool
    def __init__(self, findings: _Optional[_Iterable[_Union[ScrubReply.Finding, _Mapping]]] = ..., position: _Optional[int] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ..., records: _Optional[int] = ..., units: _Optional[int] = ..., items: _Optional[int] = ..., damages: _Optional[int] = ..., notes: _Optional[int] = ..., done: _Optional[bool] = ...) -> None: ...

class BackupRequest(_message.Message):
    __slots__ = ("directory", "bytes_per_second", "copy")
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    COPY_FIELD_NUMBER: _ClassVar[int]
    directory: str
    bytes_per_second: int
    copy: bool
    def __init__(self, directory: _Optional[str] = ..., bytes_per_second: _Optional[int] = ..., copy: _Optional[bool] = ...) -> None: ...

class BackupReply(_message.Message):
    __slots__ = ("files_done", "files_total", "bytes_done", "bytes_total", "log_begin", "log_end", "linked_files", "done")
    FILES_DONE_FIELD_NUMBER: _ClassVar[int]
    FILES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    BYTES_DONE_FIELD_NUMBER: _ClassVar[int]
    BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    LOG_BEGIN_FIELD_NUMBER: _ClassVar[int]
    LOG_END_FIELD_NUMBER: _ClassVar[int]
    LINKED_FILES_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    files_done: int
    files_total: int
    bytes_done: int
    bytes_total: int
    log_begin: int
    log_end: int
    linked_files: int
    done: bool
    def __init__(self, files_done: _Optional[int] = ..., files_total: _Optional[int] = ..., bytes_done: _Optional[int] = ..., bytes_total: _Optional[int] = ..., log_begin: _Optional[int] = ..., log_end: _Optional[int] = ..., linked_files: _Optional[int] = ..., done: _Optional[bool] = ...) -> None: ...
