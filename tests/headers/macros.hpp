// Words that other libraries define as macros: Qt's keywords, what windows.h and the headers it includes leave behind, C's complex.h
// and X11. No name of ours may be one of them.
#define signals public
#define slots
#define emit
#define foreach for
#define forever for (;;)

#define near
#define far
#define NEAR
#define FAR
#define pascal
#define cdecl
#define huge
#define hyper __int64
#define small char
#define interface struct
#define IN
#define OUT
#define OPTIONAL
#define CONST const
#define VOID void
#define THIS void
#define THIS_ void,
#define DELETE (0x00010000L)
#define ERROR 0
#define NO_ERROR 0L
#define STRICT 1
#define TRUE 1
#define FALSE 0
#define INFINITE 0xFFFFFFFF
#define ABSOLUTE 1
#define RELATIVE 2
#define OPAQUE 2
#define TRANSPARENT 1
#define ALTERNATE 1
#define WINDING 2
#define DIFFERENCE 11
#define PASSTHROUGH 19
#define DOMAIN 1
#define IGNORE 0
#define CALLBACK
#define WINAPI
#define Yield()
#define TEXT(quote) L##quote
#define GetMessage GetMessageW
#define SendMessage SendMessageW
#define CreateFile CreateFileW
#define CopyFile CopyFileW
#define DeleteFile DeleteFileW
#define GetObject GetObjectW
#define LoadImage LoadImageW
#define LoadString LoadStringW
#define DrawText DrawTextW
#define FindText FindTextW
#define ReplaceText ReplaceTextW

#define I (1.0i)
#define None 0L
#define Bool int
#define Status int
#define Success 0
#define Always 2
#define Above 0
#define Below 1
#define Complex 0
#define Unsorted 0
#define KeyPress 2
#define FocusIn 9
#define CursorShape 0
#define True 1
#define False 0

// Only after the standard library's headers, which define functions of these names.
#if defined(FUNCTION_LIKE)
#define min(a, b) (((a) < (b)) ? (a) : (b))
#define max(a, b) (((a) > (b)) ? (a) : (b))
#define major(device) ((device) >> 8)
#define minor(device) ((device)&0xFF)
#endif
